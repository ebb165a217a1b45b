{{- define "roundhouse.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "roundhouse.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "roundhouse.name" .) .Release.Name -}}
{{- .Release.Name | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "roundhouse.name" .) | replace "." "-" | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "roundhouse.selectorLabels" -}}
app.kubernetes.io/name: {{ include "roundhouse.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "roundhouse.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "roundhouse.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "roundhouse.image" -}}
{{- $tag := default (ternary "cuda" "cpu" (gt (int .Values.gpu.count) 0)) .Values.image.tag -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository $tag -}}
{{- end -}}
{{- end -}}

{{- define "roundhouse.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "roundhouse.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "roundhouse.keysSecret" -}}
{{- default (printf "%s-keys" (include "roundhouse.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{/* "true" if the pods mount a keys file. */}}
{{- define "roundhouse.hasKeysFile" -}}
{{- $auth := .Values.auth -}}
{{- if and (ne $auth.mode "off") (or $auth.keys $auth.existingSecret (not $auth.apiKeySecret.name)) -}}true{{- end -}}
{{- end -}}

{{- define "roundhouse.claim" -}}
{{- default (printf "%s-models" (include "roundhouse.fullname" .)) .Values.persistence.existingClaim -}}
{{- end -}}

{{- define "roundhouse.collectionsClaim" -}}
{{- default (printf "%s-collections" (include "roundhouse.fullname" .)) .Values.collections.existingClaim -}}
{{- end -}}

{{/* "true" if the pods of a Deployment share a volume that one node can mount at a time. */}}
{{- define "roundhouse.isMountedOnce" -}}
{{- $volume := .Values.persistence -}}
{{- if and (eq .Values.kind "Deployment") $volume.enabled (not (has "ReadWriteMany" $volume.accessModes)) -}}true{{- end -}}
{{- end -}}

{{/* "true" if the old pod has to end before a new one starts: one process has a collection. */}}
{{- define "roundhouse.isRecreated" -}}
{{- if or (include "roundhouse.isMountedOnce" .) .Values.collections.enabled -}}true{{- end -}}
{{- end -}}

{{- define "roundhouse.checkValues" -}}
{{- $replicas := ternary .Values.autoscaling.maxReplicas .Values.replicas .Values.autoscaling.enabled -}}
{{- if and (include "roundhouse.isMountedOnce" .) (gt (int $replicas) 1) -}}
{{- fail (printf "persistence.accessModes: expected ReadWriteMany for a Deployment with %d replicas, got %s; set kind: StatefulSet, ReadWriteMany or persistence.enabled: false" (int $replicas) (join ", " .Values.persistence.accessModes)) -}}
{{- end -}}
{{- if and (eq .Values.kind "StatefulSet") .Values.persistence.existingClaim -}}
{{- fail "persistence.existingClaim: expected none for a StatefulSet, which makes a claim for each replica; set kind: Deployment" -}}
{{- end -}}
{{- if and .Values.collections.enabled (gt (int $replicas) 1) -}}
{{- fail (printf "replicas: expected 1 with collections, got %d; each pod would have records of its own" (int $replicas)) -}}
{{- end -}}
{{- if and (eq .Values.kind "StatefulSet") .Values.collections.existingClaim -}}
{{- fail "collections.existingClaim: expected none for a StatefulSet, which makes a claim for each replica; set kind: Deployment" -}}
{{- end -}}
{{- if and .Values.auth.keys .Values.auth.existingSecret -}}
{{- fail "auth.keys: expected none beside auth.existingSecret, got both; remove one of them" -}}
{{- end -}}
{{- if and .Values.tls.clientCertificates (not .Values.tls.existingSecret) -}}
{{- fail "tls.existingSecret: expected a Secret with tls.clientCertificates, got none; name it" -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (ne .Values.auth.mode "off") (not .Values.serviceMonitor.keySecret.name) -}}
{{- fail "serviceMonitor.keySecret.name: expected a Secret with a key of the scope read, got none; make one, see docs/kubernetes.md" -}}
{{- end -}}
{{- end -}}

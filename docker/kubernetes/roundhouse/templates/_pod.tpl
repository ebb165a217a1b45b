{{- define "roundhouse.pod" -}}
{{- $start := . -}}
{{- with .root -}}
serviceAccountName: {{ include "roundhouse.serviceAccountName" . }}
automountServiceAccountToken: false
enableServiceLinks: false
# Longer than preStop and drain together: the models are unloaded in the rest.
terminationGracePeriodSeconds: {{ add .Values.preStopSeconds .Values.drainTimeoutSeconds 15 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  {{- $spread := dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway" }}
  {{- $own := dict "labelSelector" (dict "matchLabels" (include "roundhouse.selectorLabels" . | fromYaml)) }}
  {{- range default (list $spread) .Values.topologySpreadConstraints }}
  {{- list (merge (deepCopy .) $own) | toYaml | nindent 2 }}
  {{- end }}
{{- with .Values.initContainers }}
initContainers: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: roundhouse
    image: {{ include "roundhouse.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [serve]
    ports:
      - name: http
        containerPort: 8080
        protocol: TCP
      - name: grpc
        containerPort: 8081
        protocol: TCP
    env: {{- include "roundhouse.env" . | nindent 6 }}
    startupProbe: {{- include "roundhouse.probe" (list . "/health/ready") | nindent 6 }}
      periodSeconds: {{ $start.startPeriod }}
      timeoutSeconds: {{ .Values.probes.readiness.timeoutSeconds }}
      failureThreshold: {{ $start.startFailures }}
    readinessProbe: {{- include "roundhouse.probe" (list . "/health/ready") | nindent 6 }}
      {{- toYaml .Values.probes.readiness | nindent 6 }}
    livenessProbe: {{- include "roundhouse.probe" (list . "/health/live") | nindent 6 }}
      {{- toYaml .Values.probes.liveness | nindent 6 }}
    lifecycle:
      preStop:
        sleep:
          seconds: {{ .Values.preStopSeconds }}
    resources: {{- include "roundhouse.resources" . | nindent 6 }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities:
        drop: [ALL]
    volumeMounts:
      - name: config
        mountPath: /app/config.toml
        subPath: config.toml
        readOnly: true
      - name: models
        mountPath: /app/models
      {{- if .Values.collections.enabled }}
      - name: collections
        mountPath: /app/collections
      {{- end }}
      - name: tmp
        mountPath: /tmp
      {{- if include "roundhouse.hasKeysFile" . }}
      - name: keys
        mountPath: /app/keys
        readOnly: true
      {{- end }}
      {{- if .Values.tls.existingSecret }}
      - name: tls
        mountPath: /app/tls
        readOnly: true
      {{- end }}
      {{- with .Values.volumeMounts }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
volumes:
  - name: config
    configMap:
      name: {{ include "roundhouse.fullname" . }}
  {{- if not .Values.persistence.enabled }}
  - name: models
    emptyDir:
      sizeLimit: {{ .Values.persistence.emptyDirSizeLimit }}
  {{- else if eq .Values.kind "Deployment" }}
  - name: models
    persistentVolumeClaim:
      claimName: {{ include "roundhouse.claim" . }}
  {{- end }}
  {{- if and .Values.collections.enabled (eq .Values.kind "Deployment") }}
  - name: collections
    persistentVolumeClaim:
      claimName: {{ include "roundhouse.collectionsClaim" . }}
  {{- end }}
  - name: tmp
    emptyDir:
      sizeLimit: {{ .Values.tmpSizeLimit }}
  {{- if include "roundhouse.hasKeysFile" . }}
  - name: keys
    secret:
      secretName: {{ include "roundhouse.keysSecret" . }}
      defaultMode: 0440
  {{- end }}
  {{- if .Values.tls.existingSecret }}
  - name: tls
    secret:
      secretName: {{ .Values.tls.existingSecret }}
      defaultMode: 0440
  {{- end }}
  {{- with .Values.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "roundhouse.env" -}}
# Libraries write caches below it; the home folder of the image is read-only.
- name: HOME
  value: /tmp
- name: ROUNDHOUSE_SERVER__HOST
  value: "0.0.0.0"
- name: ROUNDHOUSE_SERVER__PORT
  value: "8080"
- name: ROUNDHOUSE_SERVER__GRPC_PORT
  value: "8081"
- name: ROUNDHOUSE_SERVER__DRAIN_TIMEOUT_S
  value: {{ .Values.drainTimeoutSeconds | quote }}
- name: ROUNDHOUSE_AUTH__MODE
  value: {{ .Values.auth.mode | quote }}
{{- with .Values.allowedHosts }}
- name: ROUNDHOUSE_SERVER__ALLOWED_HOSTS
  value: {{ toJson . | quote }}
{{- end }}
{{- if include "roundhouse.hasKeysFile" . }}
- name: ROUNDHOUSE_AUTH__KEYS_FILE
  value: /app/keys/keys.toml
{{- end }}
{{- if and .Values.auth.apiKeySecret.name (ne .Values.auth.mode "off") }}
- name: ROUNDHOUSE_API_KEY
  valueFrom:
    secretKeyRef: {{- toYaml .Values.auth.apiKeySecret | nindent 6 }}
{{- end }}
{{- if .Values.tls.existingSecret }}
- name: ROUNDHOUSE_SERVER__TLS_CERTIFICATE
  value: /app/tls/tls.crt
- name: ROUNDHOUSE_SERVER__TLS_KEY
  value: /app/tls/tls.key
{{- end }}
{{- if .Values.tls.clientCertificates }}
- name: ROUNDHOUSE_SERVER__TLS_CLIENT_CA
  value: /app/tls/ca.crt
{{- end }}
{{- with .Values.env }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* How a probe asks: over HTTP, or by a program in the container that has a client certificate. */}}
{{- define "roundhouse.probe" -}}
{{- $path := index . 1 -}}
{{- with index . 0 -}}
{{- if and .Values.tls.clientCertificates (eq $path "/health/ready") -}}
exec:
  command: [python, -I, /opt/roundhouse/healthcheck.py]
{{- else if .Values.tls.clientCertificates -}}
tcpSocket:
  port: http
{{- else -}}
httpGet:
  path: {{ $path }}
  port: http
  scheme: {{ ternary "HTTPS" "HTTP" (not (empty .Values.tls.existingSecret)) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Without a limit of memory the request is the limit: a pod beyond its request may be evicted at any time. */}}
{{- define "roundhouse.resources" -}}
{{- $requests := deepCopy (default dict .Values.resources.requests) }}
{{- $limits := deepCopy (default dict .Values.resources.limits) }}
{{- if and $requests.memory (not $limits.memory) }}
{{- $_ := set $limits "memory" $requests.memory }}
{{- end }}
{{- if gt (int .Values.gpu.count) 0 }}
{{- $_ := set $requests .Values.gpu.resource (.Values.gpu.count | toString) }}
{{- $_ := set $limits .Values.gpu.resource (.Values.gpu.count | toString) }}
{{- end }}
{{- dict "requests" $requests "limits" $limits | toYaml }}
{{- end }}

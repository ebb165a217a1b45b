# Add Ray to an image of Roundhouse, for the nodes of a Ray cluster. docker/kubernetes/ray has a RayService for it.
#
#   docker build -f docker/ray.Dockerfile -t roundhouse:cpu-ray docker
#   docker build -f docker/ray.Dockerfile --build-arg IMAGE=roundhouse:cuda -t roundhouse:cuda-ray docker
#
# The build context is the folder docker/. The image has one layer more, with the packages that are not in it yet.

# An image with all frameworks, as docker/Dockerfile makes it.
ARG IMAGE=roundhouse:cpu


FROM ${IMAGE} AS packages
# Settings of pip, for a mirror.
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
# hadolint ignore=DL3002
USER 0:0
WORKDIR /build
# The environment of the image has no pip, and neither has the base image of the target cuda.
# hadolint ignore=DL3008
RUN ln -s "$(readlink -f /opt/roundhouse/bin/python)" base-python \
    && if ! ./base-python -m pip --version; then \
        apt-get update \
        && apt-get install --yes --no-install-recommends python3-pip \
        && rm -rf /var/lib/apt/lists/*; \
    fi
COPY constraints.txt ray-constraints.txt ./
# As `ray` in pyproject.toml. Packages of the image are kept; compiles as docker/Dockerfile.
RUN ./base-python -m pip --python /opt/roundhouse/bin/python install --no-cache-dir --no-compile --prefix /ray \
        --constraint constraints.txt --constraint ray-constraints.txt 'ray[serve,data]' \
    && { /opt/roundhouse/bin/python -m compileall -f -qq -j 0 --invalidation-mode unchecked-hash /ray/lib || true; }


FROM ${IMAGE}
COPY --from=packages /ray /opt/roundhouse
# Reports of usage, which Ray would send to its makers.
ENV RAY_USAGE_STATS_ENABLED=0

# A saved site as a service, on a CPU. Build it where the repository is, with the folder of `sitewise adapt` at run time:
#   docker build -t sitewise .
#   docker run --rm -p 5001:5001 -v "$PWD/west:/site:ro" sitewise
FROM python:3.11-slim
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# The CPU build of torch is preferred where its index has it: the default one brings CUDA, which is not used here.
RUN python -m pip install --constraint constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu '.[mlflow,images]'
RUN useradd --create-home service
USER service
EXPOSE 5001
CMD ["sitewise", "serve", "/site", "--host", "0.0.0.0", "--port", "5001"]

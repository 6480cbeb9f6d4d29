# Needs Python 3.11 or newer with venv and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin/python
# Nothing from the user's own site-packages: results do not depend on them.
export PYTHONNOUSERSITE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pip writes paths; in an ASCII locale it could not write all of them.
export PYTHONUTF8 := 1

# pip links the library by its absolute path, and a Python that starts in an ASCII locale cannot read a link with other
# letters in it. The way from site-packages to lib has none.
define RELATIVE_LINK
import os, pathlib, sysconfig
site = pathlib.Path(sysconfig.get_path("purelib"))
(link,) = site.glob("__editable__*attention_dynamics*.pth")
link.write_text(os.path.relpath("lib", site.resolve()) + "\n", encoding="utf-8")
endef
export RELATIVE_LINK

.PHONY: reproduce smoke test bench lock clean
.DELETE_ON_ERROR:

reproduce: $(VENV)/installed
	$(BIN) -m attention_dynamics.reproduce

smoke: $(VENV)/installed
	$(BIN) -m attention_dynamics.reproduce --smoke

test: $(VENV)/installed
	$(BIN) -m pytest

bench: $(VENV)/installed
	$(BIN) -m attention_dynamics.bench

# The stamp is written last, so an interrupted installation starts again.
$(VENV)/installed: Makefile pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN) -m pip install --quiet --constraint requirements.lock --editable '.[test]'
	LC_ALL=C.UTF-8 $(BIN) -c "$$RELATIVE_LINK"
	touch $@

# Resolve the ranges of pyproject.toml anew. torch is held, since its default build is several GB on Linux; a local
# build tag (+cpu) is dropped, so that the pin names the release.
TORCH := 2.13.0
lock: $(VENV)/installed
	$(BIN) -m pip install --quiet pip-tools
	$(BIN) -m piptools compile --quiet --upgrade-package torch==$(TORCH) --extra test --strip-extras --allow-unsafe \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options --no-annotate --no-header \
	  --output-file requirements.new pyproject.toml
	sed 's/+cpu$$//' requirements.new > requirements.lock
	rm requirements.new

clean:
	rm -rf $(VENV) results .reproduce-*

# The same as a Makefile: make -f docs/scripts/curriculum.mk PIPELINE=pipelines/tiny.yaml
# concise itself knows what is finished, so every target may run every time.
PIPELINE ?= concise.yaml
FLAGS ?=
CONCISE ?= concise

.PHONY: report eval stage2 mine stage1 sft data
report: eval
	$(CONCISE) report -p $(PIPELINE) $(FLAGS)
eval: stage2
	$(CONCISE) eval -p $(PIPELINE) $(FLAGS)
stage2: mine
	$(CONCISE) train --stage 2 -p $(PIPELINE) $(FLAGS)
mine: stage1
	$(CONCISE) mine -p $(PIPELINE) $(FLAGS)
stage1: sft
	$(CONCISE) train --stage 1 -p $(PIPELINE) $(FLAGS)
sft: data
	$(CONCISE) sft -p $(PIPELINE) $(FLAGS)
data:
	$(CONCISE) data build -p $(PIPELINE) $(FLAGS)

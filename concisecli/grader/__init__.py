"""The judgement: does a response's answer equal the gold answer? `answers` is the way in, `grading` the pool."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from sitewise.estimator.scoring.probabilities import module_outputs


class Meeting(nn.Module):
    """The identity in evaluation mode; its first call waits for a second one, which waits until the first has ended."""

    def __init__(self):
        super().__init__()
        self.calls, self.second, self.ended = itertools.count(), threading.Event(), threading.Event()

    def forward(self, x):
        if next(self.calls) == 0:
            self.second.wait(0.3)
        else:
            self.second.set()
            self.ended.wait(0.3)
        return x + 100.0 if self.training else x


def test_threads_that_predict_do_not_disturb_each_others_mode():
    module, X = Meeting().train(), torch.randn(4, 2)

    def predict(_):
        outputs = module_outputs(module, X)
        module.ended.set()
        return outputs

    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(predict, range(2)))
    assert all(torch.equal(one, X.double()) for one in outputs)
    assert module.training


def test_threads_predict_side_by_side_with_a_module_in_evaluation_mode():
    together = threading.Barrier(2, timeout=10)

    class Meets(nn.Module):
        def forward(self, x):
            together.wait()
            return x

    module, X = Meets().eval(), torch.randn(4, 2)
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda _: module_outputs(module, X), range(2)))
    assert all(torch.equal(one, X.double()) for one in outputs)


def test_a_layer_frozen_in_evaluation_mode_stays_frozen():
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).train()
    module[1].eval()
    module_outputs(module, torch.randn(4, 3))
    assert [layer.training for layer in module.modules()] == [True, True, False]

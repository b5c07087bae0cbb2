"""The paper's EM with a network, as the paper describes it; it uses only PyTorch and sitewise's encoding of Z."""

import torch

import sitewise as sw


def published_em(log_ratio, Z, seed, rounds=5):
    """Return log g at the rows of Z, (n, K), by the paper's algorithm 1 in plain PyTorch.

    The network has two hidden layers of 100 units, and there are T = 5 rounds. Each round computes the
    responsibilities, and then minimizes the network's cross-entropy with them by PyTorch's LBFGS with its default
    settings (no line search).
    """
    torch.manual_seed(seed)
    schema = sw.Confounders.learn(Z)
    inputs = schema.inputs(schema.encode(Z)[0]).float()
    log_f = torch.log_softmax(torch.as_tensor(log_ratio, dtype=torch.float32), dim=1)
    network = torch.nn.Sequential(
        torch.nn.Linear(inputs.shape[1], 100),
        torch.nn.ReLU(),
        torch.nn.Linear(100, 100),
        torch.nn.ReLU(),
        torch.nn.Linear(100, log_f.shape[1]),
    )
    optimizer = torch.optim.LBFGS(network.parameters())
    for _ in range(rounds):
        with torch.no_grad():
            responsibilities = torch.softmax(log_f + torch.log_softmax(network(inputs), dim=1), dim=1)

        def closure(targets=responsibilities):
            optimizer.zero_grad()
            loss = -(targets * torch.log_softmax(network(inputs), dim=1)).sum(1).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    with torch.no_grad():
        return torch.log_softmax(network(inputs).double(), dim=1).numpy()

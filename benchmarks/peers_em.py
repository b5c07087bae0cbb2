"""The paper's network EM as the paper describes it: needs nothing but PyTorch and the schema of Z."""

import torch

import sitewise as sw


def published_em(log_ratio, Z, seed, rounds=5):
    """The paper's algorithm 1 as the paper describes it, in plain PyTorch: log g (n, K) at the rows of Z.

    Two hidden layers of 100, T = 5 rounds; in each, responsibilities and then PyTorch's LBFGS as it comes (no line
    search) on the network's cross-entropy with them.
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

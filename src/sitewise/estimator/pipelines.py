"""Adapt a pipeline that ends in a model to a new site."""

from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from sitewise.estimator.adapted import AdaptedClassifier
from sitewise.estimator.model import SiteModel

NO_MODEL = (
    "adapt: expected a fitted GPAClassifier or PrevalenceAdjuster, or a Pipeline that ends in one, got {kind}: put the "
    "classifier into PrevalenceAdjuster(classifier) and fit that (after a search, adapt best_estimator_)"
)


def adapt(
    model: SiteModel | Pipeline, X: Any, sample_confounder: Any = None, **settings: Any
) -> AdaptedClassifier | Pipeline:
    """Adapt a model, or a pipeline that ends in one, to a new site with unlabeled rows. The model is unchanged.

    Parameters
    ----------
    model : GPAClassifier, PrevalenceAdjuster or Pipeline
        A fitted model, or a fitted pipeline whose last step is one. The other steps of the pipeline are not changed.
    X : DataFrame or array-like
        Rows of the site, as the model or the pipeline reads them.
    sample_confounder : DataFrame or array-like of shape (n, V), optional
        The confounders z of the rows.
    **settings : object
        Further arguments of the model's `adapt`, such as y, groups, sample_weight, policy and known_prevalence. For a
        pipeline, `confounder_columns` refers to the columns of the input of its last step.

    Returns
    -------
    AdaptedClassifier or Pipeline
        The model at this site. For a pipeline: a pipeline with the same fitted steps, except that its last step is the
        model at this site.

    Examples
    --------
    >>> pipeline = make_pipeline(StandardScaler(), GPAClassifier()).fit(X, y)
    >>> here = sw.adapt(pipeline, X_new, sample_confounder=Z_new)
    >>> here.predict_proba(X_new, sample_confounder=Z_new), here[-1].prevalence()
    """
    if isinstance(model, SiteModel):
        return model.adapt(X, sample_confounder, **settings)
    if not isinstance(model, Pipeline) or not isinstance(model.steps[-1][1], SiteModel | Pipeline):
        last = f" that ends in {type(model.steps[-1][1]).__name__}" if isinstance(model, Pipeline) else ""
        raise TypeError(NO_MODEL.format(kind=type(model).__name__ + last))
    check_is_fitted(model)
    *front, (name, last_step) = model.steps
    for _, step in front:
        if step not in (None, "passthrough"):
            X = step.transform(X)
    return Pipeline([*front, (name, adapt(last_step, X, sample_confounder, **settings))])

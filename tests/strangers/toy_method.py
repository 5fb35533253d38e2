"""A method: ordinary training, with every setting that it reads, and no promise."""

from crtlib.training import methods, schedules


def phases(constants):
    return schedules.sgd_phases(
        epochs=constants.epochs,
        batch_size=2 * constants.batch_size,
        learning_rate=constants.learning_rate,
    )


METHOD = methods.register_method(
    methods.Method(
        name="toy_method",
        label="Toy method",
        phases=phases,
        promise=lambda events, terms: None,  # it adds no noise
        reads=frozenset({"gamma", "per", "policy", "batch_size", "learning_rate"}),
        searched=("learning_rate",),
    )
)

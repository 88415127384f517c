"""Commands that help who gives an option of the config as if it were a flag."""

from click import Context, NoSuchOption
from typer.core import TyperCommand


class Command(TyperCommand):
    """A command; ``--lr 0.1`` is answered with ``--set train.lr=…``."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        try:
            return super().parse_args(ctx, args)
        except NoSuchOption as error:
            from cafedcl.config.sections import full_name

            meant = full_name(error.option_name.lstrip("-").replace("-", "_"))
            if meant is not None and any("--set" in it.opts for it in self.params):
                error.possibilities = [f"--set {meant}=…"]
            raise

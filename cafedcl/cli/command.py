"""Commands that help users who give an option of the config as a flag, or an empty path."""

from click import Context, NoSuchOption, Option, Path
from typer.core import TyperCommand

from cafedcl.core.errors import CafedclError


class Command(TyperCommand):
    """A command; ``--lr 0.1`` is answered with ``--set train.lr=…``."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        try:
            left = super().parse_args(ctx, args)
        except NoSuchOption as error:
            from cafedcl.config.sections import full_name

            meant = full_name(error.option_name.lstrip("-").replace("-", "_"))
            if meant is not None and any("--set" in it.opts for it in self.params):
                error.possibilities = [f"--set {meant}=…"]
            raise
        self._refuse_empty_paths(ctx)
        return left

    def _refuse_empty_paths(self, ctx: Context) -> None:
        """Raise an error for an empty path, such as an unset shell variable, which would otherwise
        mean the current folder.
        """
        for param in self.params:
            value = ctx.params.get(param.name or "")
            values = value if isinstance(value, list | tuple) else [value]
            if isinstance(param.type, Path) and "" in values:
                name = param.opts[0] if isinstance(param, Option) else param.make_metavar(ctx)
                raise CafedclError(f"{name}: the path is empty; give the path of a file or folder")

"""The public test kit: what authors of device plugins and of devhost backends test against."""

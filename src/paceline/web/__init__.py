"""The web application: live studies, results, figures, and a form that starts a study. No build step, no network.

connections ─► guard ─► pages (one file each) ─► results_cache and jobs (studies that run)
"""

from paceline.web.app import make_app
from paceline.web.connections import Connection
from paceline.web.form import Option
from paceline.web.site import Site

__all__ = ["Connection", "Option", "Site", "make_app"]

"""The web application: live studies, results, figures, and a form that starts a study. No build step, no network.

guard ─► pages (one file each) ─► results_cache and jobs (studies that run)
"""

from paceline.web.app import make_app
from paceline.web.form import Option
from paceline.web.site import Site

__all__ = ["Option", "Site", "make_app"]

"""A corpus on disk that is screened, and policies that are taught."""

"""What is promised of runtime policies, as SQL: each statement returns the rows that break it.

What an attempt may use is enforced where it runs; what it may hand over stands in the rows.
"""

from feltd.mesh.promised import Promise

ARTIFACTS_ALLOWED = """
SELECT w.workload_id, w.artifacts
  FROM workloads w
 WHERE w.runtime_policy <> '{}'
   AND w.runtime_policy GLOB '*"artifact_policy":"none"*'
   AND w.artifacts <> '[]'
"""

POLICIES = (Promise("ARTIFACTS", "no artifacts where the policy allows none", ARTIFACTS_ALLOWED),)

-- What is held, by whom, until when, and how many kinds of waiting work does each hold touch?
SELECT v.tenant_id, v.hold_id, v.scope, v.value, v.held_by, v.reason, v.held_at, v.until_at,
       (SELECT count(*)
          FROM demands d
         WHERE (v.tenant_id = '*' OR d.tenant_id = v.tenant_id)
           AND (v.scope IN ('all', 'tenant')
                OR (v.scope = 'application' AND d.application_id = v.value)
                OR (v.scope = 'pool' AND d.pool_id = v.value)
                OR (v.scope = 'definition'
                    AND v.value IN (d.definition_id,
                                    d.definition_id || '#' || d.definition_revision)))
           AND EXISTS (SELECT 1
                         FROM workloads w
                        WHERE w.demand_id = d.demand_id)) AS kinds_of_work,
       'feltd hold delete ' || v.hold_id AS lifted_by
  FROM v_holds v
 WHERE v.holds = 1
 LIMIT 200;

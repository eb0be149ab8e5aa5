//! The rules of the affinity contract, and the field failures that are the core's to prevent, each as
//! its own test through the calls that hosts make. A test is named after the rule that it checks.

#![expect(clippy::unwrap_used, reason = "tests, and the helpers that only tests use")]

mod rules {
    mod f28_blame;
    mod f28_trust;
    mod f35_overload;
    mod f61_vitals;
    mod f_fleets;
    mod f_load;
    mod f_reports;
    mod queue;
    mod queue_order;
    mod r01_key;
    mod r02_passive;
    mod r03_first_turn;
    mod r04_concurrent;
    mod r05_r06_pin;
    mod r06_weigh;
    mod r07_answered;
    mod r07_departed;
    mod r07_down;
    mod r07_draining;
    mod r07_excluded;
    mod r07_failed;
    mod r07_overloaded;
    mod r07_policy;
    mod r07_unready;
    mod r08_admission;
    mod r08_home_line;
    mod r09_explicit;
    mod r10_check;
    mod r11_commit;
    mod r11_plans;
    mod r12_broken;
    mod r12_failed;
    mod r13_r14_leases;
    mod r15_full;
    mod r15_quota;
    mod r16_acts;
    mod r16_preview;
    mod r17_roles;
    mod r18_r19_groups;
    mod r20_r21_modes;
    mod r22_moved;
    mod r23_locks;
    mod r23_merge;
    mod r25_promised;
    mod r25_restart;
    mod r26_visible;
    mod r27_hot;
    mod records;
    mod records_kept;
    mod records_many;
    mod refusals;
    mod reload;
    mod world;
}

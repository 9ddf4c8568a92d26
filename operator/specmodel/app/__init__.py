"""How the process runs: options, health, Lease, watches, loops, metrics. The only importer of `kopf`.

    main ─► health server ─► Lease ─► loops (one per object) ◄─rings─ bells (kopf's watches), resync, timers

Nothing here decides: a loop makes passes of `reconcile`.
"""

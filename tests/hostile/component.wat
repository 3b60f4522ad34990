;; What every hostile plugin is wrapped in: the trigger world's handler around
;; the core modules of its own file, which take the place of MODULES.
(component
  (import "outrigger:trigger/types@1.0.0" (instance $types
    (type $event (record
      (field "message-id" string) (field "project" string) (field "resource" string)
      (field "aggregate-id" string) (field "event-name" string) (field "schema-version" u32)
      (field "payload" string) (field "meta" (list (tuple string string)))
      (field "dedup-key" (option string)) (field "created-at-ms" u64) (field "position" u64)
      (field "attrs" (list (tuple string string)))))
    (export "event" (type (eq $event)))
    (type $attempt (record
      (field "trigger" string) (field "number" u32) (field "max" u32)
      (field "deadline-ms" u32) (field "idempotency-key" string)
      (field "attrs" (list (tuple string string)))))
    (export "attempt" (type (eq $attempt)))
    (type $retry (record (field "message" string) (field "after-ms" (option u32))))
    (export "retry" (type $retry-name (eq $retry)))
    (type $failure (variant (case "retry" $retry-name) (case "reject" string)))
    (export "failure" (type (eq $failure)))))
  (alias export $types "event" (type $event))
  (alias export $types "attempt" (type $attempt))
  (alias export $types "failure" (type $failure))

  (import "outrigger:trigger/log@1.0.0" (instance $log
    (type $level (enum "trace" "debug" "info" "warn" "error"))
    (export "level" (type $level-name (eq $level)))
    (export "log" (func (param "level" $level-name) (param "message" string)))))

  (import "outrigger:trigger/emit@1.0.0" (instance $emit
    (type $due (variant (case "now") (case "after-ms" u32) (case "at-ms" u64)))
    (export "due" (type $due-name (eq $due)))
    (type $new-event (record
      (field "resource" string) (field "aggregate-id" string) (field "event-name" string)
      (field "schema-version" u32) (field "payload" string)
      (field "meta" (list (tuple string string))) (field "dedup-key" (option string))
      (field "due" $due-name)))
    (export "new-event" (type $new-event-name (eq $new-event)))
    (type $error (variant
      (case "denied" string) (case "limit" string) (case "invalid" string)
      (case "other" string)))
    (export "error" (type $error-name (eq $error)))
    (export "emit"
      (func (param "event" $new-event-name) (result (result string (error $error-name)))))))

  ;; MODULES

  (core instance $memory-of (instantiate $memory))
  (alias core export $memory-of "memory" (core memory $bytes))
  (alias core export $memory-of "realloc" (core func $realloc))
  (alias export $log "log" (func $log-one))
  (alias export $emit "emit" (func $emit-one))
  (core func $log-core (canon lower (func $log-one) (memory $bytes)))
  (core func $emit-core (canon lower (func $emit-one) (memory $bytes) (realloc $realloc)))
  (core instance $main-of (instantiate $main
    (with "memory" (instance $memory-of))
    (with "host" (instance
      (export "log" (func $log-core))
      (export "emit" (func $emit-core))))))
  (alias core export $main-of "handle" (core func $handle-core))
  (alias core export $main-of "after" (core func $after))
  (func $handle
    (param "event" $event) (param "attempt" $attempt) (result (result (error $failure)))
    (canon lift (core func $handle-core)
      (memory $bytes) (realloc $realloc) (post-return $after)))
  (instance $handler (export "handle" (func $handle)))
  (export "outrigger:trigger/handler@1.0.0" (instance $handler)))

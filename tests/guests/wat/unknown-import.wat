;; A plugin in order but for one import, which no host offers.
(component
  (import "acme:missing/api@1.0.0" (instance $api
    (export "ping" (func (result u32)))))

  (import "outrigger:trigger/types@1.0.0" (instance $types
    (type $event' (record
      (field "message-id" string)
      (field "project" string)
      (field "resource" string)
      (field "aggregate-id" string)
      (field "event-name" string)
      (field "schema-version" u32)
      (field "payload" string)
      (field "meta" (list (tuple string string)))
      (field "dedup-key" (option string))
      (field "created-at-ms" u64)
      (field "position" u64)
      (field "attrs" (list (tuple string string)))))
    (export "event" (type $event (eq $event')))
    (type $attempt' (record
      (field "trigger" string)
      (field "number" u32)
      (field "max" u32)
      (field "deadline-ms" u32)
      (field "idempotency-key" string)
      (field "attrs" (list (tuple string string)))))
    (export "attempt" (type $attempt (eq $attempt')))
    (type $retry' (record
      (field "message" string)
      (field "after-ms" (option u32))))
    (export "retry" (type $retry (eq $retry')))
    (type $failure' (variant
      (case "retry" $retry)
      (case "reject" string)))
    (export "failure" (type $failure (eq $failure')))))
  (alias export $types "event" (type $event))
  (alias export $types "attempt" (type $attempt))
  (alias export $types "retry" (type $retry))
  (alias export $types "failure" (type $failure))

  (alias export $api "ping" (func $ping'))
  (core func $ping (canon lower (func $ping')))

  ;; Takes its arguments at a place that `cabi_realloc` gives away, pings, and
  ;; answers ok: the result area at 0 begins with the tag 0.
  (core module $module
    (import "acme:missing/api@1.0.0" "ping" (func $ping (result i32)))
    (memory (export "memory") 16)
    (global $free (mut i32) (i32.const 1024))
    (func (export "cabi_realloc") (param $old i32) (param $old-size i32) (param $align i32) (param $size i32) (result i32)
      (local $place i32)
      (local.set $place
        (i32.and
          (i32.add (global.get $free) (i32.sub (local.get $align) (i32.const 1)))
          (i32.sub (i32.const 0) (local.get $align))))
      (global.set $free (i32.add (local.get $place) (local.get $size)))
      local.get $place)
    (func (export "handle") (param $arguments i32) (result i32)
      (drop (call $ping))
      i32.const 0))
  (core instance $imports (export "ping" (func $ping)))
  (core instance $core (instantiate $module
    (with "acme:missing/api@1.0.0" (instance $imports))))
  (alias core export $core "memory" (core memory $memory))
  (alias core export $core "cabi_realloc" (core func $realloc))
  (alias core export $core "handle" (core func $handle'))
  (func $handle
    (param "event" $event)
    (param "attempt" $attempt)
    (result (result (error $failure)))
    (canon lift (core func $handle') (memory $memory) (realloc $realloc)))

  ;; Gives the types and the function their names in the exported interface.
  (component $handler
    (import "event-type" (type $event-type (eq $event)))
    (import "attempt-type" (type $attempt-type (eq $attempt)))
    (import "retry-type" (type $retry-type (eq $retry)))
    (type $failure' (variant
      (case "retry" $retry-type)
      (case "reject" string)))
    (import "failure-type" (type $failure-type (eq $failure')))
    (import "handle-func" (func $handle
      (param "event" $event-type)
      (param "attempt" $attempt-type)
      (result (result (error $failure-type)))))
    (export $event-export "event" (type $event-type))
    (export $attempt-export "attempt" (type $attempt-type))
    (export $failure-export "failure" (type $failure-type))
    (export "handle" (func $handle) (func
      (param "event" $event-export)
      (param "attempt" $attempt-export)
      (result (result (error $failure-export))))))
  (instance $interface (instantiate $handler
    (with "event-type" (type $event))
    (with "attempt-type" (type $attempt))
    (with "retry-type" (type $retry))
    (with "failure-type" (type $failure))
    (with "handle-func" (func $handle))))
  (export "outrigger:trigger/handler@1.0.0" (instance $interface)))

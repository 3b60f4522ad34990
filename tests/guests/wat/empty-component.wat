;; A component with neither imports nor exports.
(component)

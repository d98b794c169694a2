//go:build race

package capability

import "time"

// The bounds are wide under the race detector, which slows everything down twentyfold and more.
const (
	decisionBound = 500 * time.Millisecond
	grantBound    = 10 * time.Second
)

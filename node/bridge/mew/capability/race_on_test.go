//go:build race

package capability

import "time"

// These bounds are wide, because the race detector slows everything down by more than a factor of twenty.
const (
	decisionBound = 500 * time.Millisecond
	grantBound    = 10 * time.Second
)

//go:build race

package mew

import "time"

// raceOn: the race detector takes memory and time.
const raceOn = true

// The bounds are wide under the race detector, which slows everything down twentyfold and more.
const (
	decisionBound = 500 * time.Millisecond
	grantBound    = 10 * time.Second
)

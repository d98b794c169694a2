//go:build race

package mew

import "time"

// raceOn: the race detector takes memory and time.
const raceOn = true

// decisionBound is wide under the race detector, which slows everything down tenfold and more.
const decisionBound = 50 * time.Millisecond

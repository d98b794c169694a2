//go:build !race

package mew

import "time"

const raceOn = false

// decisionBound is the promise of section 5.
const decisionBound = time.Millisecond

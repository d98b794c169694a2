//go:build race

package gateway

import "time"

// raceOn is true because the race detector takes memory and time.
const raceOn = true

const grantBound = 10 * time.Second

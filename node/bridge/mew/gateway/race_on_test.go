//go:build race

package gateway

import "time"

// raceOn: the race detector takes memory and time.
const raceOn = true

const grantBound = 10 * time.Second

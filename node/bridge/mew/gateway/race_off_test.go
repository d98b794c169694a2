//go:build !race

package gateway

import "time"

const raceOn = false

// grantBound is ten times and more of what one grant takes on a quiet machine.
const grantBound = 500 * time.Millisecond

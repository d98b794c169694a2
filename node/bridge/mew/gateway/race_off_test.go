//go:build !race

package gateway

import "time"

const raceOn = false

// grantBound is more than ten times what one grant takes on an idle machine.
const grantBound = 500 * time.Millisecond

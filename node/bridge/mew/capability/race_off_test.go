//go:build !race

package capability

import "time"

// decisionBound is ten times the millisecond that a decision may take on an idle machine, because other processes
// compete with the tests. Without bounds in the matcher, a decision takes more than a second.
const decisionBound = 10 * time.Millisecond

// grantBound bounds the work for one grant: more than ten times what it takes on an idle machine.
const grantBound = 500 * time.Millisecond

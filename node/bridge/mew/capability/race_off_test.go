//go:build !race

package capability

import "time"

// decisionBound is ten times what section 5 promises for a machine that does nothing else: other processes compete with
// the tests. Without bounds in the matcher a decision takes a second and more.
const decisionBound = 10 * time.Millisecond

// grantBound is for the work that one grant makes, ten times and more of what it takes on a quiet machine.
const grantBound = 500 * time.Millisecond

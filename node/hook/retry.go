package hook

import (
	"time"

	"github.com/agentmesh/agentmesh/node/client"
)

// RetryFor is how long the node keeps trying to reach a hook for one message.
const RetryFor = 24 * time.Hour

// retryPauses are the pauses between attempts to reach a hook; the last one repeats.
var retryPauses = [...]time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute}

// RetryPause returns how long to wait after the given number of failed attempts, ± 20 %.
func RetryPause(failed int) time.Duration {
	return client.Jitter(retryPauses[min(max(failed-1, 0), len(retryPauses)-1)])
}

package client

import (
	"math/rand/v2"
	"time"
)

// Jitter returns d, a fifth more or less, so that many callers do not come back together.
func Jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}

package client

import (
	"math/rand/v2"
	"time"
)

// Jitter returns d plus or minus up to a fifth, so that many callers do not retry at the same time.
func Jitter(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}

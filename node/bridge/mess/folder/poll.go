package folder

import (
	"log/slog"
	"time"
)

// PollEvery is the usual interval between polls of a directory (MESS-51).
const PollEvery = 5 * time.Second

// A directory with very many threads is polled less often: the interval is at least pollShare times as long as the poll
// took, but at most maxPollInterval.
const (
	pollShare       = 50
	maxPollInterval = time.Minute
)

// NextPoll returns the interval until the next poll. took excludes the imports and writes of the last poll.
func NextPoll(took time.Duration) time.Duration {
	return min(max(PollEvery, pollShare*took), maxPollInterval)
}

const progressInterval = 10 * time.Second

// progress reports on one pass over many threads.
type progress struct {
	log  *slog.Logger
	next time.Time
}

func newProgress(log *slog.Logger) progress { return progress{log, time.Now().Add(progressInterval)} }

// report logs a text, at most once in progressInterval.
func (p *progress) report(text string, args ...any) {
	if now := time.Now(); !now.Before(p.next) {
		p.next = now.Add(progressInterval)
		p.log.Info(text, args...)
	}
}

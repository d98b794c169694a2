package folder

import (
	"log/slog"
	"time"
)

// PollEvery is how often a directory is looked at (MESS-51).
const PollEvery = 5 * time.Second

// A directory of very many threads is looked at less often: pollShare is which part of the time looking may take, and
// pollAtMost how long what others add may go unseen for that.
const (
	pollShare  = 50
	pollAtMost = time.Minute
)

// nextLook says when the directory is looked at again, after a look that took so long. What was read and written because
// of it does not count.
func nextLook(took time.Duration) time.Duration {
	return min(max(PollEvery, pollShare*took), pollAtMost)
}

// sayEvery is how often a long pass over the directory says how far it is.
const sayEvery = 10 * time.Second

// progress is one pass over many threads.
type progress struct {
	log  *slog.Logger
	next time.Time
}

func newProgress(log *slog.Logger) progress { return progress{log, time.Now().Add(sayEvery)} }

// say logs now and then.
func (p *progress) say(text string, args ...any) {
	if now := time.Now(); !now.Before(p.next) {
		p.next = now.Add(sayEvery)
		p.log.Info(text, args...)
	}
}

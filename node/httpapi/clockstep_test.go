//go:build clockstep

package httpapi

import (
	"crypto/sha256"
	"net/http"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store/storetest"
)

// TestClockStepOfSessions: a browser that signed in to the owner's page before or while the clock was wrong stays
// signed in when the clock is right again, and a sign-in code lives as long as it should.
func TestClockStepOfSessions(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		dir, token := t.TempDir(), tokenHash(sha256.Sum256([]byte("token")))
		s := newSessions(dir)
		if err := s.load(token); err != nil {
			t.Fatal(err)
		}
		begin := func() string {
			t.Helper()
			value, _, err := s.begin(time.Now())
			if err != nil {
				t.Fatal(err)
			}
			return value
		}
		isGood := func(value string) bool {
			r := &http.Request{Header: http.Header{"Cookie": {s.cookieName() + "=" + value}}}
			_, ok := s.find(r)
			return ok
		}
		first := begin()
		time.Sleep(sessionLife - 30*time.Minute)
		early, _ := s.newCode(time.Now())
		storetest.StepClock(t, by)
		if !s.redeem(early, time.Now()) {
			t.Error("a code that was made before the step does not work")
		}
		second := begin()
		if !isGood(second) {
			t.Error("a session that just began is over")
		}
		late, _ := s.newCode(time.Now())
		s = newSessions(dir) // a restart
		if err := s.load(token); err != nil {
			t.Fatal(err)
		}
		storetest.StepClock(t, 0)
		if !isGood(first) || !isGood(second) {
			t.Errorf("with the right clock the session from before is good: %v, the one from meanwhile: %v", isGood(first), isGood(second))
		}
		if s.redeem(late, time.Now()) {
			t.Error("a code works after a restart")
		}
		late, _ = s.newCode(time.Now())
		storetest.StepClock(t, by)
		time.Sleep(codeLife - time.Second)
		storetest.StepClock(t, 0)
		if !s.redeem(late, time.Now()) {
			t.Error("a code ended early")
		}
		late, _ = s.newCode(time.Now())
		storetest.StepClock(t, by)
		time.Sleep(codeLife)
		if s.redeem(late, time.Now()) {
			t.Error("a code works after its end")
		}
		storetest.StepClock(t, 0)
		time.Sleep(30 * time.Minute)
		if isGood(first) || !isGood(second) {
			t.Errorf("at its end the first session is good: %v, the second: %v", isGood(first), isGood(second))
		}
	})
}

//go:build slow

package client

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// TestBadSignaturesFetchOnceAMinute checks that a sender of bad signatures makes us ask the directory at most once a
// minute, whatever the directory's cache headers are and whether or not it lists the sender (THREATS 11).
func TestBadSignaturesFetchOnceAMinute(t *testing.T) {
	for _, tt := range []struct {
		name, control string
		known, down   bool
		want          error
	}{
		{name: "known", known: true, want: wire.ErrSignature},
		{name: "known, not to be cached", control: "no-store", known: true, want: wire.ErrSignature},
		{name: "unknown", want: wire.ErrUnknownSender},
		{name: "directory down", down: true, want: wire.ErrNoDirectory},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newListing()
				l.control, l.down = tt.control, tt.down
				if tt.known {
					l.put(sarah, key(1))
				}
				v := &Verifier{Cards: NewCards(CardsConfig{Directories: []*Directory{l.at(home)}, HTTP: NewHTTP(HTTPConfig{}), Records: records(t)})}
				bad := forgeMessage(t, sarah, time.Now())
				for minute := range 5 {
					for range 2000 {
						if _, err := v.Authenticate(t.Context(), bad, Origin{}, time.Now()); !errors.Is(err, tt.want) {
							t.Fatalf("Authenticate() = %v, want %v", err, tt.want)
						}
						time.Sleep(30 * time.Millisecond)
					}
					if got := l.count(); got > minute+1 {
						t.Fatalf("%d fetches after minute %d", got, minute+1)
					}
				}
				if l.count() < 4 {
					t.Errorf("%d fetches in 5 minutes: a new key would not be seen", l.count())
				}
			})
		})
	}
}

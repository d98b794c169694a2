//go:build slow

package directory

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/directory/admission"
	"github.com/agentmesh/agentmesh/directory/probe"
)

// TestVictimHost: of three hundred cards that name one host the directory accepts ten. Even without that quota it
// probes the host only once a minute.
func TestVictimHost(t *testing.T) { // AM-58, AM-63, THREATS 17
	t.Parallel()
	var hits atomic.Int64
	victim := startEndpoint(t, func(rw http.ResponseWriter, _ *http.Request) { hits.Add(1); http.NotFound(rw, nil) })
	for name, tt := range map[string]struct{ perHost, taken int }{"default": {0, admission.DefaultPerHost}, "no quota": {-1, 300}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, withProbes, func(c *Config) { c.Quotas = Quotas{PerToken: -1, PerHour: -1, PerHost: tt.perHost} })
			hits.Store(0)
			start := time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { w.reg.Run(ctx) })
			h, taken := w.edge.Handler(), 0
			for i := range 300 {
				card := testCard(fmt.Sprintf("am_%04d", i), text("endpoint", fmt.Sprintf("%s/%d", victim, i)))
				if send(h, "POST", "/v1/agents", string(card.JSON()), withBearer(alice)...).Code == 201 {
					taken++
				}
			}
			if taken != tt.taken || w.reg.prober.Queue().Len() > probe.MaxOfHost {
				t.Errorf("%d cards are taken, want %d; %d wait for a probe", taken, tt.taken, w.reg.prober.Queue().Len())
			}
			for end := time.Now().Add(time.Minute); hits.Load() == 0 && time.Now().Before(end); {
				<-time.After(20 * time.Millisecond)
			}
			<-time.After(3 * time.Second) // enough time for other probes
			cancel()
			running.Wait()
			if n, most := hits.Load(), 1+int64(time.Since(start)/probe.HostPause); n < 1 || n > most {
				t.Errorf("the host was probed %d times in %v, want at most %d", n, time.Since(start), most)
			}
		})
	}
}

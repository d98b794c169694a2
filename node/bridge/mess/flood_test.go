package mess

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
)

// TestNoRegistrationLimitInTheLocalProfile: in the local profile all callers have the same address, so nobody is
// refused for it (AM-82).
func TestNoRegistrationLimitInTheLocalProfile(t *testing.T) {
	s := newHTTPLab(t, func(c *exchange.Config) { c.RegistrationsPerHour = 2 })
	s.server.Local = true
	for i := range 5 {
		s.register(fmt.Sprint("executor", i))
	}
	s.server.Local = false
	for i := range 3 {
		want := http.StatusCreated
		if i == 2 {
			want = http.StatusTooManyRequests
		}
		s.want(want, "", "POST", "register", fmt.Sprintf(`{"executor_id":"stranger-%d"}`, i))
	}
}

package rate_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
)

// ExampleAllowance limits each address to two requests at once, and then to one a second.
func ExampleAllowance() {
	now := time.Now()
	a := rate.NewAllowance(1, 2, 1000)
	for _, text := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.1", "198.51.100.7"} {
		wait, ok := a.Take(netip.MustParseAddr(text), now)
		fmt.Println(text, ok, wait)
	}
	// Output:
	// 192.0.2.1 true 0s
	// 192.0.2.1 true 0s
	// 192.0.2.1 false 1s
	// 198.51.100.7 true 0s
}

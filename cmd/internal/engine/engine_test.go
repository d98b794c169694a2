package engine

import "testing"

// TestInstanceNames: the first processes of two containers with long host names have different names.
func TestInstanceNames(t *testing.T) {
	seen := make(map[string]string)
	for _, host := range []string{
		"", "a", "b", "agentmesh-directory-production-6d4b75cb6d-hx7kq", "agentmesh-directory-production-6d4b75cb6d-2mnpw",
		"ip-10-0-1-23.eu-west-1.compute.internal", "ip-10-0-2-23.eu-west-1.compute.internal",
	} {
		name := nameInstance(host, 1)
		if other, taken := seen[name]; taken {
			t.Errorf("the processes on %s and %s have the name %s", host, other, name)
		}
		if len(name) > 34 {
			t.Errorf("the name %s is long", name)
		}
		seen[name] = host
	}
}

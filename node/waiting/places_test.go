package waiting

import "testing"

func TestPlaces(t *testing.T) {
	p := NewPlaces(3, 2)
	enter := func(key string, want bool) func() {
		t.Helper()
		leave, ok := p.Enter(key)
		if ok != want {
			t.Fatalf("Enter(%s) = %v, want %v", key, ok, want)
		}
		return leave
	}
	leave := enter("a", true)
	enter("a", true)
	enter("a", false)
	enter("b", true)
	enter("c", false)
	leave()
	enter("c", true)
	enter("a", false)
}

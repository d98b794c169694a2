//go:build slow

package mess

import (
	"fmt"
	"testing"
)

func init() {
	linkKinds = append(linkKinds, linkKind{"git", func(t *testing.T) *farSide { return newFolderFarSide(t, true) }})
}

// TestRestartsOverLinks: a link dies at its call number n of the store, between what it does at the exchange and what it
// remembers of it, and starts again with what was stored. Nothing is lost, and nothing comes twice.
func TestRestartsOverLinks(t *testing.T) {
	for _, kind := range linkKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			for n := int64(1); ; n += 2 + n/10 {
				died := false
				t.Run(fmt.Sprint("call ", n), func(t *testing.T) { died = kind.begin(t).playWithDeath(n) })
				if !died {
					return
				}
			}
		})
	}
}

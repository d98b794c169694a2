package a2a

import "time"

// BlockFor is how long a call is held.
const BlockFor = blockFor

// SetBlockFor changes how long a call is held.
func (b *Bridge) SetBlockFor(d time.Duration) { b.blockFor = d }

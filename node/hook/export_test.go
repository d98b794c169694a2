package hook

import "context"

// Enter lets a test take the turn of a context.
func Enter(h *A2A, ctx context.Context, key string) (leave func(), err error) {
	return h.enter(ctx, key)
}

// This package is for tests only. Wrap a handler with [Check], or pass what a client saw to [Compare]. Run recorded
// exchanges with [Read] and [Exchange.Replay].
package apitest

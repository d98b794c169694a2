// Package apitest holds handlers against what is written about the public API: the OpenAPI document of httpapi, and
// exchanges that were recorded with other implementations.
//
// It is for tests only. Wrap a handler with [Check] and use it as before, or hand what a client saw to [Compare];
// run recorded exchanges with [Read] and [Exchange.Replay].
package apitest

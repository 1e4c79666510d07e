/*
 * recurrent_sizes.c: what cuDNN asks for before a recurrent layer (cudnnGetRNNTempSpaceSizes), on a machine without a card.
 *
 *     cc recurrent_sizes.c -I CUDA/include -L CUDA/lib -lcudnn -lcudnn_adv -lcudnn_ops -lcudnn_graph -o recurrent_sizes
 *     echo "3 2 1 0 200 103 128 128 1" | LD_LIBRARY_PATH=CUDA/lib ./recurrent_sizes
 *
 * A line is: algorithm (0 standard, 1 persistent, 3 persistent for few units), mode (2 LSTM, 3 GRU), directions, type (0 float32,
 * 2 float16, 9 bfloat16), steps, batch, input, units, layers. Printed behind it: workspace, reserve and weights in bytes.
 *
 * A handle needs a card. The sizes are made of the descriptors and of two numbers in the handle, capability and processors,
 * before the library asks the driver which card is current: that fails, and the sizes are there. The places of the two are
 * those of cuDNN 9.19.0; with another version nothing is printed.
 */
#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>

enum { VERSION = 91900, CAPABILITY_AT = 0x68, PROCESSORS_AT = 0x1c, HANDLE_BYTES = 1 << 20, NO_DRIVER = 5003 };

static int ask(char *handle, const int *x)
{
    cudnnRNNDescriptor_t rnn;
    cudnnDropoutDescriptor_t none;
    cudnnRNNDataDescriptor_t data;
    size_t workspace = 0, reserve = 0, weights = 0;
    float zero = 0;
    int *lengths = malloc((size_t)x[5] * sizeof *lengths);
    if (!lengths || cudnnCreateRNNDescriptor(&rnn) || cudnnCreateDropoutDescriptor(&none) ||
        cudnnCreateRNNDataDescriptor(&data))
        return 1;
    for (int i = 0; i < x[5]; i++)
        lengths[i] = x[4];
    int status = cudnnSetDropoutDescriptor(none, (cudnnHandle_t)handle, 0, NULL, 0, 0);
    if (!status) /* as PyTorch does: sums in float32, two biases, lengths in the data */
        status = cudnnSetRNNDescriptor_v8(rnn, x[0], x[1], CUDNN_RNN_DOUBLE_BIAS, x[2] - 1, CUDNN_LINEAR_INPUT, x[3],
                                          CUDNN_DATA_FLOAT, CUDNN_DEFAULT_MATH, x[6], x[7], x[7], x[8], none,
                                          CUDNN_RNN_PADDED_IO_ENABLED);
    if (!status)
        status = cudnnSetRNNDataDescriptor(data, x[3], CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED, x[4], x[5], x[6],
                                           lengths, &zero);
    if (!status)
        status =
            cudnnGetRNNTempSpaceSizes((cudnnHandle_t)handle, rnn, CUDNN_FWD_MODE_TRAINING, data, &workspace, &reserve);
    if (status && status != NO_DRIVER)
        printf("%s\n", cudnnGetErrorString(status));
    else if (!cudnnGetRNNWeightSpaceSize((cudnnHandle_t)handle, rnn, &weights))
        printf("%d %d %d %d %d %d %d %d %d %zu %zu %zu\n", x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8],
               workspace, reserve, weights);
    cudnnDestroyRNNDataDescriptor(data);
    cudnnDestroyDropoutDescriptor(none);
    cudnnDestroyRNNDescriptor(rnn);
    free(lengths);
    return 0;
}

int main(void)
{
    char line[256], *handle = calloc(1, HANDLE_BYTES);
    int x[9];
    if (!handle || cudnnGetVersion() != VERSION) {
        fprintf(stderr, "cuDNN is %zu: the places in its handle are known for %d\n", cudnnGetVersion(), VERSION);
        return 1;
    }
    *(int *)(handle + CAPABILITY_AT) = 900; /* an H200 */
    *(int *)(handle + PROCESSORS_AT) = 132;
    while (fgets(line, sizeof line, stdin))
        if (sscanf(line, "%d %d %d %d %d %d %d %d %d", x, x + 1, x + 2, x + 3, x + 4, x + 5, x + 6, x + 7, x + 8) ==
                9 &&
            x[5] > 0 && ask(handle, x))
            return 1;
    free(handle);
    return 0;
}

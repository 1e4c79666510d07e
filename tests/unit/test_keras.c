/* test_keras.c: reading Keras files as people saved them. */
#include "test.h"

#include "base/os.h"
#include "model/model.h"

#include <dirent.h>

/* Parameters stored for a model and what it nests. */
static uint64_t stored_parameters(const mf_model *m)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < m->layer_count; i++) {
        const mf_layer *l = &m->layers[i];
        for (uint32_t s = 0; s < l->stored_count; s++) {
            assert_int_equal(l->stored[s].bytes,
                             mf_shape_count(&l->stored[s].shape) * mf_dtype_bytes(l->stored[s].dtype));
            n += mf_shape_count(&l->stored[s].shape);
        }
        n += l->inner ? stored_parameters(l->inner) : 0;
    }
    return n;
}

/* File, then how many layers, parameters and optimizer arrays Keras has for it. */
static const struct {
    const char *file;
    uint32_t layers;
    uint64_t parameters;
    uint32_t optimizer;
    memfit_status status;
    const char *says;
} samples[] = {
    {"00VALAK00__fastapi-docker-tensorflow__model.keras", 8, 13089, 17, MEMFIT_OK, ""},
    {"123Cryptic__diabetes_detection__model.keras", 8, 9729, 21, MEMFIT_OK, ""},
    {"14shreyas04__Phishing-URL-Detection__model.keras", 8, 62326, 16, MEMFIT_OK, ""},
    {"2024-AI-EXPO__AI-testv_1__model_v1_16.keras", 6, 44229, 16, MEMFIT_OK, ""},
    {"2mdtln__FlowNet-ANN__final_model.keras", 8, 10786, 18, MEMFIT_OK, ""},
    {"404error-010__ANN-Churn-Classification__model.keras", 4, 2945, 14, MEMFIT_OK, ""},
    {"57cell__nlf-classifier__best_model.keras", 7, 76545, 13, MEMFIT_OK, ""},
    {"98mprice__mario-level-generator__model.keras", 4, 80791, 5, MEMFIT_OK, ""},
    {"ALbaghdadi__Eye_State_detection__model.keras", 12, 102465, 33, MEMFIT_OK, ""},
    {"Abinash7G__SentimentAnalysis__best_model.keras", 6, 94154, 18, MEMFIT_OK, ""},
    {"Aditya1026-05__Crypto-Currency-Price-Predictor-LSTM__model.keras", 5, 117619, 22, MEMFIT_OK, ""},
    {"Adityasenthil__SudokuCVEngine__model.keras", 9, 93322, 22, MEMFIT_OK, ""},
    {"AkshatP0285__NLP_Assignment_2__best_model.keras", 8, 468825, 26, MEMFIT_OK, ""},
    {"Alberto-Del-Puerto__DNN-Based-Classification-EEG__finally_model_without_audio00.keras", 10, 174337, 26, MEMFIT_OK,
     ""},
    {"Alex-Elias__hit-song__model.keras", 4, 751, 13, MEMFIT_OK, ""},
    {"Alexanderms36__HumanGlaucoma__model.keras", 4, 417, 13, MEMFIT_OK, ""},
    {"AlgoDM-Fall2023-Team2__Visual-Search-Using-Variational-Autoencoders__model.keras", 0, 0, 0, MEMFIT_UNSUPPORTED,
     "VAE"},
    {"Aman-21k__cnn-fashion-mnist-classifier__model.keras", 9, 121930, 18, MEMFIT_OK, ""},
    {"Ashutosh27ind__ner-lstm-iob2__model.keras", 6, 207267, 20, MEMFIT_OK, ""},
    {"Azahramirez__prediccionconTransformers__transformer.keras", 23, 1317, 38, MEMFIT_OK, ""},
    {"Bigkatoan__Medical-MNIST-Kaggle__model.keras", 10, 121974, 21, MEMFIT_OK, ""},
    {"Ollie-Gullery__Real-Time-Audio-Classification__model.keras", 13, 25921, 33, MEMFIT_OK, ""},
    {"PiotrexOG__ECG__model.keras", 18, 79857, 90, MEMFIT_OK, ""},
    {"Requiem5032__mosquitoes-classification__deploy_model.keras", 17, 38082, 29, MEMFIT_OK, ""},
    {"keras-team__keras__pre_pr22362_nested_container.keras", 0, 0, 0, MEMFIT_UNSUPPORTED, "NestedDenseModel"},
};

static void real_files_read_as_keras_reads_them(void **state)
{
    (void)state;
    if (!test_shared_data())
        skip();
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/keras/%s", test_shared_data(), samples[i].file);
        mf_model *m = NULL;
        memfit_error err;
        memfit_status st = mf_model_load_flags(NULL, path, MF_LOAD_VERIFY, &m, &err);
        if (st != samples[i].status)
            fail_msg("%s: %s", path, st ? err.message : "read, yet it should not be");
        if (st) {
            assert_non_null(strstr(err.message, samples[i].says));
            assert_true(err.hint[0]);
            continue;
        }
        if (stored_parameters(m) != samples[i].parameters || m->layer_count != samples[i].layers)
            fail_msg("%s: %llu parameters, %u layers", path, (unsigned long long)stored_parameters(m), m->layer_count);
        assert_int_equal(m->optimizer_count, samples[i].optimizer);
        assert_int_equal(m->unclaimed_count, 0);
        assert_non_null(m->compile);
        mf_model_destroy(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(real_files_read_as_keras_reads_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
